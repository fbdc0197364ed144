"""Repositories of the Hugging Face hub: their configuration files, and of safetensors files the headers."""

from .faults import HubError
from .remote_header import RemoteHeader
from .repository import LocalFolder, Repository, record_transfer, transfers_recorded, weight_files
from .repository_name import HUB_ID, HubName
