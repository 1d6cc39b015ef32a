"""The measured libraries, one module each, imported only by an interpreter that has the library."""
