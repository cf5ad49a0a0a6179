/* Stands for libtorch_cpu.so: it has gloo's all-reduce by its C++ name, so that the census takes who maps it for a rank, and its calls are
   timed. The reduction is real, over sockets: rank 0 hears from all and answers all. */
#include <unistd.h>

int _ZN4gloo9allreduceERNS_16AllreduceOptionsE(const int *peers, int count, int root)
{
	char word[8] = {0};
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < count; i++)
			if ((pass == root ? write(peers[i], word, sizeof(word)) : read(peers[i], word, sizeof(word))) != sizeof(word))
				return -1;
	return 0;
}
