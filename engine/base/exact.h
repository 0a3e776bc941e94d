// SPDX-License-Identifier: Apache-2.0
/* Float functions of the sampler that give the same bits on every machine: only exactly rounded
 * operations in a fixed order, and no product that a compiler could fuse with a sum. The CUDA
 * kernels use the same functions.
 * Thread: any. Compiles as C11, C++17 and CUDA. */
#ifndef SLUICE_BASE_EXACT_H
#define SLUICE_BASE_EXACT_H

#include "engine/base/rng.h"

#include <math.h>
#include <stdint.h>

union exact_bits {
    float f;
    uint32_t u;
};

RNG_FN float exact_from_bits(uint32_t u)
{
    union exact_bits b;
    b.u = u;
    return b.f;
}

RNG_FN uint32_t exact_to_bits(float f)
{
    union exact_bits b;
    b.f = f;
    return b.u;
}

/* log((1 + f) * 2^e) for f in [sqrt(1/2) - 1, sqrt(2) - 1]: f - f^2/2 + f^3 P(f), with P fitted for
 * the least relative error of the whole (6e-9 before rounding). */
RNG_FN float exact_log_parts(float f, float e)
{
    float p = -0.07634496688842773f;
    p = fmaf(p, f, 0.1276157647371292f);
    p = fmaf(p, f, -0.13160182535648346f);
    p = fmaf(p, f, 0.14201757311820984f);
    p = fmaf(p, f, -0.16623356938362122f);
    p = fmaf(p, f, 0.20001226663589478f);
    p = fmaf(p, f, -0.2500081956386566f);
    p = fmaf(p, f, 0.3333333134651184f);
    float square = f * f;
    float tail = fmaf(p, f, -0.5f);
    float y = fmaf(e, -2.12194440e-4f, 0.0f); // ln 2 = 0.693359375 - 2.1219444e-4
    y = fmaf(tail, square, y);
    y = fmaf(1.0f, f, y);
    return fmaf(e, 0.693359375f, y);
}

/* Natural logarithm of a positive normal number, within 2 units in the last place. */
RNG_FN float exact_log(float x)
{
    uint32_t bits = exact_to_bits(x);
    int32_t e = (int32_t)(bits - 0x3F3504F3u) >> 23; // 0x3F3504F3 is sqrt(1/2)
    float m = exact_from_bits(bits - ((uint32_t)e << 23));
    return exact_log_parts(m - 1.0f, (float)e);
}

/* e^x for x <= 0, within 2 units in the last place; 0 below -87, and for NaN. */
RNG_FN float exact_exp(float x)
{
    float y = x > -87.0f ? x : -87.0f;
    float n = fmaf(y, 1.44269504f, 12582912.0f); // rounds to an integer in the low bits
    int32_t exponent = (int32_t)exact_to_bits(n) - 0x4B400000;
    n = n - 12582912.0f;
    float r = fmaf(n, -0.693359375f, y);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 0.0013814467238262296f;
    p = fmaf(p, r, 0.008368780836462975f);
    p = fmaf(p, r, 0.04166839271783829f);
    p = fmaf(p, r, 0.1666651964187622f);
    p = fmaf(p, r, 0.4999999403953552f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    float e = exact_from_bits((uint32_t)(exponent + 127) << 23);
    return x > -87.0f ? p * e : 0.0f;
}

/* -log(-log(u)) for u = (bits + 0.5) / 2^32. Where u is near 1 the inner logarithm is computed from
 * t = 1 - u, which a float represents exactly enough however small it is. */
RNG_FN float gumbel_noise(uint32_t bits)
{
    uint32_t rest = ~bits; // t = (rest + 0.5) / 2^32
    float u = ((float)bits + 0.5f) * 2.3283064365386963e-10f;
    float t = ((float)rest + 0.5f) * 2.3283064365386963e-10f;
    uint32_t u_bits = exact_to_bits(u);
    int32_t e = (int32_t)(u_bits - 0x3F3504F3u) >> 23;
    float f = exact_from_bits(u_bits - ((uint32_t)e << 23)) - 1.0f;
    int near_one = rest < 0x4AFB0CCCu; // u > sqrt(1/2)
    float w = -exact_log_parts(near_one ? -t : f, near_one ? 0.0f : (float)e);
    return -exact_log(w);
}

#endif
