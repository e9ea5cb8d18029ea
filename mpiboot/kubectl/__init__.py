"""Pods that are entered by ``kubectl exec`` where others are logged in to by SSH."""
