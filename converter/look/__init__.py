"""Looking at drafters without converting them: what one is (`inspect`), and what differs between two (`diff`)."""
