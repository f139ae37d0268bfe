"""What is shown to people: the paper's tables and figures, and our results beside them."""
