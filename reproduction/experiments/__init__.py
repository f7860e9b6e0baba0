"""Single questions about the paper's numbers; what each prints is in results/."""
