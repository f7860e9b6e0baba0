"""Where `on_round` may write to, each an extra of its own; see `fedlap.TensorBoard` and `fedlap.MLflow`."""
