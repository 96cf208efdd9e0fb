"""The page on which a run is watched: it reads what nodes write into their folders, and nothing else."""
