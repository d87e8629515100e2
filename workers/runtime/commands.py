"""What a supervisor says to a rank, one byte each, on the rank's command pipe."""

from typing import Final

GO: Final = b"G"  # begin
CONTINUE: Final = b"C"  # train on: the checkpoint has been taken over; or, after a pause, take one more step
SAVE: Final = b"S"  # save the step at which you paused
LEAVE: Final = b"L"  # end
