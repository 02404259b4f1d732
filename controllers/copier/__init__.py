"""Keep fields of objects equal to fields of other objects, as annotations say."""
