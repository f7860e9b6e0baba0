"""The network: Flower's SuperLink and SuperNodes carry the messages of `fedlap.study`. Nothing else imports Flower."""
