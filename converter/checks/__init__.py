"""Static checks: each a small function over what is already known, registered under the codes it may raise."""
