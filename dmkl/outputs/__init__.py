"""Writers of what people take elsewhere: tables of labeled data, kernels in the formats of their fields."""
