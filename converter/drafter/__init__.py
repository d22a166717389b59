"""The canonical drafter: the one description that every dialect is read into and written from."""
