"""The launcher's gates: every host resolves and answers, or the reason why not."""
