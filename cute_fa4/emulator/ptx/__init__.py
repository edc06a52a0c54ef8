"""PTX as text and as data: parser, syntax, operand sizes, labels, errors."""
