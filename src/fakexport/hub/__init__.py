"""Repositories of the Hugging Face hub: their configuration files, and of safetensors files the headers."""

from .faults import HubError
from .listing import weight_files
from .remote_header import RemoteHeader
from .repository import Repository
from .repository_name import HUB_ID, HubName
from .transfers import record as record_transfer
from .transfers import transfers_recorded
