"""Small modules, one per feature of torch, each exported and compared with stock torch and with eager."""
