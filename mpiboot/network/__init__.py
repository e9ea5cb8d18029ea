"""The pods' own network: the control link, MTUs. Pure."""
