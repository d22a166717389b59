"""Repositories on the Hugging Face Hub, read through huggingface_hub: its cache, endpoint, tokens and offline mode."""
