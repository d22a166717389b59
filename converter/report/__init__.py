"""What was found and done, as text for people and as JSON under published schemas."""
