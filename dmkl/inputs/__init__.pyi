# What readers offer; each name is imported when it is first used (see __init__.py of dmkl).

from .covariate_files import read_covariates as read_covariates
from .features import as_features as as_features
from .file_source import FileSource as FileSource
from .kernel_files import open_files as open_files
from .kernel_sources import as_source as as_source
from .label_files import read_file as read_file
from .label_files import read_vector as read_vector
from .labels import Labels as Labels
