"""The pods' own network: the control link, service meshes, MTUs. Pure."""
