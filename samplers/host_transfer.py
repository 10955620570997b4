"""The only crossing between host and device in a loop: see `models.host_transfer`, which caches share."""

from pardec.models.host_transfer import (
    DeviceColumn,
    Download,
    Transfers,
    counted,
    download,
    refill,
    refused,
    to_host,
    upload,
)

__all__ = ["DeviceColumn", "Download", "Transfers", "counted", "download", "refill", "refused", "to_host", "upload"]
