/* What the pods of test_node_cluster.py run: writes its user into a file, if it is given one, and stays. */
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	if (count > 1) {
		FILE *file = fopen(arguments[1], "w");
		if (file == NULL) {
			perror(arguments[1]);
			return 1;
		}
		fprintf(file, "%d %d\n", getuid(), getegid());
		fclose(file);
	}
	puts("here");
	fflush(stdout);
	pause();
	return 0;
}
