"""What a git push would publish, held back where a drafter in it is not in order (docs/hooks.md)."""
