"""The commands: what each is called, which options it has, and the entrypoint form beside them."""
