"""Commands of the study, offered by `anofpdm` where this folder is there."""
