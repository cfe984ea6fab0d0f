# What readers offer; each name is imported when it is first used (see __init__.py of dmkl).

from .features import as_features as as_features
from .kernels import as_source as as_source
from .kernels import open_files as open_files
from .label_tables import read_covariates as read_covariates
from .label_tables import read_file as read_file
from .label_tables import read_names as read_names
from .labels import Labels as Labels
