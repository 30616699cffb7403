"""Child processes, which drivers may crash instead of this one."""
