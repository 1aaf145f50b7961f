// The one source file of the targets whose headers others use (CkptdTargets.cmake).
int main() { return 0; }
