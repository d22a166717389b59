"""torch: the drafter's forward pass, samples and scores. Imported only where something is run."""
