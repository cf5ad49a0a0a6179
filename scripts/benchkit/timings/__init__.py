"""Files of timings as other people's jobs would write them, simulated without any rule of the diagnoser, and how they are judged."""
