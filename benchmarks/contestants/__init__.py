"""Who is measured, one module each, imported only in an interpreter that has that library."""
