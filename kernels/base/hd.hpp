// DP_HD marks functions that are compiled for host and device alike (codecs, random numbers).
#pragma once

#ifdef __CUDACC__
#define DP_HD __host__ __device__
#else
#define DP_HD
#endif
