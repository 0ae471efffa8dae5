"""What commands say, on its way to who reads it: live from process 1, recorded on disk, or retained after the end."""
