"""How sure results are and what explains them: plans of many fits that share passes, and what they found."""
