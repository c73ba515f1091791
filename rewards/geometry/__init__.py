"""Boxes, points, spans and masks: read, brought into one coordinate frame, compared."""
