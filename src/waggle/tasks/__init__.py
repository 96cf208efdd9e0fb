"""Questions with a verifier: where they come from, what is held out, how an answer is graded."""
