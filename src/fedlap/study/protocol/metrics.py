"""What members report about the rows they hold back, added up; and their words, made fit for a terminal."""

from fedlap.errors import DataError


def pooled_metrics(replies):
    """Accuracy and NLL over the held-back rows of those who answered."""
    totals = {"rows": 0, "correct": 0, "nll": 0.0}
    for reply in replies:
        metrics = reply.facts.get("metrics")
        if not isinstance(metrics, dict) or metrics.keys() != totals.keys():
            raise DataError(f"{reply.member}: its metrics are not {', '.join(totals)}")
        for name, value in metrics.items():
            if type(value) not in (int, float) or not 0 <= value < 1e15:
                raise DataError(f"{reply.member}: its {name} of held-back rows is no number, or none that can be")
            totals[name] += value
    rows = totals["rows"]
    if not rows:
        return {"test_rows": 0, "accuracy": None, "nll": None}
    return {"test_rows": rows, "accuracy": totals["correct"] / rows, "nll": totals["nll"] / rows}


def shown(metrics):
    if not metrics["test_rows"]:
        return "no rows held back"
    return f"accuracy {metrics['accuracy']:.3f}, NLL {metrics['nll']:.3f} on {metrics['test_rows']} rows held back"


def printable(words):
    """Words of a member, for a terminal: no control characters, and not too many."""
    return "".join(letter if letter.isprintable() else " " for letter in words[:500])
