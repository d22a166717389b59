"""What a sealed drafter is published with."""
