"""The driver as a test uses it, through cuda-bindings."""

import ckptd._cuda_driver as own


def driver():
    from cuda.bindings import driver as cu

    return cu


def ask(answer, doing):
    """What a driver call answered: nothing, a value, or several; raises for an error."""
    own.ask(answer[:1], doing, "the GPU")
    values = answer[1:]
    return values if len(values) > 1 else values[0] if values else None


class Gpu:
    """One GPU and its primary context, current in this thread from now on."""

    def __init__(self, uuid: str):
        cu = own.driver()
        self.device = own.find_device(uuid)
        context = ask(cu.cuDevicePrimaryCtxRetain(self.device.handle), "making a context")
        ask(cu.cuCtxSetCurrent(context), "entering the context")

    def free(self) -> int:
        return ask(driver().cuMemGetInfo(), "asking for free memory")[0]

    def total(self) -> int:
        return int(ask(driver().cuDeviceTotalMem(self.device.handle), "asking for its memory"))

    def properties(self):
        cu = driver()
        wanted = cu.CUmemAllocationProp()
        wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = self.device.ordinal
        wanted.requestedHandleTypes = (
            cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        )
        return wanted

    def granularity(self, recommended: bool) -> int:
        flags = driver().CUmemAllocationGranularity_flags
        flag = (
            flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
            if recommended
            else flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        )
        answer = driver().cuMemGetAllocationGranularity(self.properties(), flag)
        return int(ask(answer, "asking for the granularity"))

    def create(self, nbytes: int):
        return ask(driver().cuMemCreate(nbytes, self.properties(), 0), f"allocating {nbytes} bytes")

    def export(self, handle) -> int:
        kind = driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return int(ask(driver().cuMemExportToShareableHandle(handle, kind, 0), "exporting"))

    def take(self, fd: int):
        kind = driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return ask(driver().cuMemImportFromShareableHandle(fd, kind), "importing")

    def map(self, handle, nbytes: int, writable: bool) -> int:
        cu = driver()
        address = int(ask(cu.cuMemAddressReserve(nbytes, 0, 0, 0), "reserving addresses"))
        ask(cu.cuMemMap(address, nbytes, 0, handle, 0), "mapping")
        access = cu.CUmemAccessDesc()
        properties = self.properties()  # a member does not keep its struct
        access.location = properties.location
        flags = cu.CUmemAccess_flags
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        ask(cu.cuMemSetAccess(address, nbytes, [access], 1), "making it accessible")
        return address

    def drop(self, address: int, handle, nbytes: int) -> None:
        cu = driver()
        ask(cu.cuMemUnmap(address, nbytes), "unmapping")
        ask(cu.cuMemRelease(handle), "releasing")
        ask(cu.cuMemAddressFree(address, nbytes), "freeing addresses")

    def write(self, address: int, data: bytes) -> None:
        ask(driver().cuMemcpyHtoD(address, data, len(data)), "copying in")

    def read(self, address: int, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        if nbytes:
            ask(driver().cuMemcpyDtoH(data, address, nbytes), "copying out")
        return bytes(data)
