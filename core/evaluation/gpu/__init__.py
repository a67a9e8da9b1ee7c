"""The GPU tier: what runs a candidate on a real GPU, compares on the device, measures, and keeps the GPU sound.

`stage` is the door (`GpuStage.judge`); `child` is the confined side. Nothing here knows of the CPU tier.
"""
