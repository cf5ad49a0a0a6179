"""Why a job stands still."""
