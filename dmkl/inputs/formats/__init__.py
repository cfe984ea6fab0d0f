"""File formats, one file each; `dmkl.inputs.formats.registry` lists them."""
