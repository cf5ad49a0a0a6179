/* Lives for SECONDS, and runs for a moment every 50 ms, so that whoever watches it sees it run. */
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	for (double left = count > 1 ? atof(arguments[1]) : 0; left > 0; left -= 0.05)
		usleep(50000);
}
