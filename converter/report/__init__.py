"""What was found and done: text for people, JSON under published schemas, and that JSON as a page and as Markdown."""
