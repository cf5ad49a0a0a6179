/* A library that the table of calls knows by its name and this function: a call that takes as long as it is asked to. */
#include <time.h>

int _ZN4gloo9allreduceERNS_16AllreduceOptionsE(int microseconds)
{
	struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000L};

	while (nanosleep(&left, &left))
		;
	return microseconds;
}
