"""torch: the drafter's forward pass, samples and scores. Imported only when a sample is given."""
