"""Read configuration files and safetensors headers from repositories of the Hugging Face hub."""

from .faults import HubError
from .remote_header import RemoteHeader
from .repository import LocalFolder, Repository, record_transfer, transfers_recorded, weight_files
from .repository_name import HUB_ID, HubName
